// Written to be formatted: nothing here is where a formatter puts it.
import 'dart:math';import "dart:async"   show Future;
typedef Visit<T>=void Function(T value,{required int depth});
/// A tree with a value
/// in each node.
class Tree<T extends Comparable<T>>{final T value;Tree<T>? left,right;
Tree(this.value,{this.left,this.right});
  factory Tree.of(Iterable<T> values){var tree=Tree<T>(values.first);for(final value in values.skip(1))tree.insert(value);return tree;}
  void insert(T other){if(other.compareTo(value)<0){if(left==null){left=Tree(other);}else{left!.insert(other);}}else{right==null?right=Tree(other):right!.insert(other);}}
  void each(Visit<T> visit,[int depth=0]){left?.each(visit,depth+1);visit(value,depth:depth);right?.each(visit,depth+1);}
  @override String toString()=>'Tree($value, ${left??'-'}, ${right??"-"})'   ;
}
enum Size{small(1),large(100);const Size(this.weight);final int weight;bool get heavy=>weight>10;}
sealed class Shape{} class Circle extends Shape{Circle(this.radius);final double radius;} class Square extends Shape{Square(this.side);final double side;}
double area(Shape shape)=>switch(shape){Circle(radius:var r)=>pi*r*r,Square(:final side) when side>0=>side*side,Square()=>0,};
mixin Loud on Object{String shout()=>toString().toUpperCase()+'!'*3;}
extension on int{int get squared=>this*this;}
(int,{String name}) pair()=>(1,name:'one');
Future<List<int>> numbers(int count,{bool Function(int)? where})async{final found=<int>[];await for(final number in Stream.fromIterable(Iterable.generate(count))){if(where?.call(number)??true){found.add(number);}}return found;}
void main()async{
final tree=Tree.of([5,3,8,1,4,7,9,2,6]);tree.each((value,{required depth}){print('${'  '*depth}$value');});
var map={'one':1,'two':2,for(var i=3;i<10;i++)'$i':i,if(tree.left!=null)...{'left':0}};
  label:for(var i=0;i<3;i++){do{if(i==1)continue label;map.update('one',(old)=>old+i,ifAbsent:()=>0);}while(false);}
try{throw StateError('a message that is long enough to make its line longer than the width of a page is');}on StateError catch(error,stack){print([error.message,stack.toString().length]);}finally{print(map);}
print((await numbers(100,where:(number)=>number.isEven&&number%3==0)).map((number)=>number.squared).where((square)=>square>100).toList()..shuffle(Random(1)));
final text="""
  several lines   stay
as they are""";assert(text.isNotEmpty,'never');print(area(Circle(1))+area(Square(2))+Size.values.map((size)=>size.weight).reduce((a,b)=>a+b)+pair().$1);
}
